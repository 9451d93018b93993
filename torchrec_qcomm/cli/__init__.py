"""The command line `torchrec-qcomm`; must only parse arguments and print, and import torch only once a command needs it."""
