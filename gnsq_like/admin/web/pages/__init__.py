"""The pages: what each shows, as a template and its values. All of this runs in the core's thread, and may switch."""
