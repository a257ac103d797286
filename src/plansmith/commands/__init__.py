"""One module a subcommand, each with `configure(parser)` and `run(args) -> exit code`; imported when asked for."""
