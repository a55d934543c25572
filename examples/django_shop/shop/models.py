"""Orders."""

from typing import ClassVar

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models


class Order(models.Model):
    """An order and its state."""

    class Item(models.TextChoices):
        """The goods."""

        TEA = "tea", "Darjeeling, first flush"
        COFFEE = "coffee", "Coffee beans, dark"
        COCOA = "cocoa", "Drinking chocolate"

    class State(models.TextChoices):
        """Each state is reached once, from the one before it."""

        PLACED = "placed", "placed"
        PACKED = "packed", "packed"
        SHIPPED = "shipped", "on its way"

    customer = models.CharField("Your name", max_length=40)
    item = models.CharField(max_length=10, choices=Item.choices)
    count = models.PositiveSmallIntegerField(
        "How many", default=1, validators=[MinValueValidator(1), MaxValueValidator(99)]
    )
    state = models.CharField(max_length=10, choices=State.choices, default=State.PLACED, editable=False)
    placed_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["-pk"]

    @property
    def what(self) -> str:
        """The goods and how many."""
        return f"{self.count} × {self.get_item_display()}"

    def __str__(self) -> str:
        return f"{self.what} for {self.customer}"
