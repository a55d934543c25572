"""What the integrations have in common: settings, declared readers, pages. None of it is public."""
