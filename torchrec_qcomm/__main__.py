"""``python -m torchrec_qcomm``: the command line."""

import sys

from torchrec_qcomm.cli.main import main

sys.exit(main())
