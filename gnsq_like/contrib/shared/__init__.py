"""Shared by the integrations: settings, declared readers, pages. Nothing here is public."""
