"""The pages: a template and its values for each. Runs in the core's thread, and may switch."""
