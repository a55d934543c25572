"""Read-only rows in Django's admin."""

from __future__ import annotations

from django.contrib import admin


class LookingAdmin(admin.ModelAdmin):
    """Rows that only the integration creates and changes; users may view and delete them."""

    show_full_result_count = False

    def has_add_permission(self, request: object) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: object, obj: object = None) -> bool:
        """Nobody; users with view permission see all fields."""
        return False
