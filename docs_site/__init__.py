"""The documentation site: stages the Markdown of the repository, adds the generated reference, builds and checks HTML."""
