"""``python -m pagraph`` is the command ``pagraph``."""

from .cli import main

if __name__ == "__main__":
    main(prog_name="pagraph")
