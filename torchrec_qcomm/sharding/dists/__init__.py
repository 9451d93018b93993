"""The output dists in the place of TorchRec's; move rows, and must not decide what is sharded how."""
