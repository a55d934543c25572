"""The admin's HTTP side: the JSON API, the pages, and the checks that every request passes."""
