"""Shared by the integrations: settings, declared readers, pages. Not public."""
