"""The command `apac`, also as `python -m apac`."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Until the command line is imported, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    from apac.cli import main as run

    run()


if __name__ == "__main__":
    main()
