"""One module per subcommand: EXAMPLES, arguments(parser), run(options, output) -> exit code."""
