"""The command `kpipe`; `kpipe_platform.cli.main` has the application."""
