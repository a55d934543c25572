"""The URLs of the pages."""

from django.contrib import admin
from django.urls import path

from shop import views

urlpatterns = [
    path("", views.index, name="index"),
    path("orders/", views.orders, name="orders"),
    path("admin/", admin.site.urls),
]
