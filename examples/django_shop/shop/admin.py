"""The orders in the admin."""

from django.contrib import admin

from shop.models import Order


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("pk", "customer", "item", "count", "state", "placed_at")
    list_filter = ("state", "item")
