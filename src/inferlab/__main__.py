"""`python -m inferlab`: the command line, also for torchrun."""

from inferlab.cli import main

if __name__ == "__main__":
    main()
