"""`python -m keepwarm.cli`."""

import sys

from keepwarm.cli import main

sys.exit(main())
