"""The sharded collections and their sharders in the place of TorchRec's."""
