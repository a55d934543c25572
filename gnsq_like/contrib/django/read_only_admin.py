"""What the tables of the integration have in common in Django's admin."""

from __future__ import annotations

from django.contrib import admin


class LookingAdmin(admin.ModelAdmin):
    """Rows that only the integration makes and changes; people look at them, and may delete them."""

    show_full_result_count = False

    def has_add_permission(self, request: object) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: object, obj: object = None) -> bool:
        """Nobody; who may view sees all fields."""
        return False
