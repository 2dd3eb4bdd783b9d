"""`python -m colibri` is the command `colibri`."""

from .cli import main

raise SystemExit(main())
