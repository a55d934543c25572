"""The order form."""

from typing import ClassVar

from django import forms

from shop.models import Order


class OrderForm(forms.ModelForm):
    """An order."""

    item = forms.ChoiceField(choices=Order.Item.choices, widget=forms.RadioSelect, initial=Order.Item.TEA)

    class Meta:
        model = Order
        fields: ClassVar = ["item", "count", "customer"]
        widgets: ClassVar = {"customer": forms.TextInput(attrs={"autocomplete": "name", "placeholder": "Ada"})}
