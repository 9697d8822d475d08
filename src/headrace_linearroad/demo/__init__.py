"""The demo: two expressways live, with an accident and tolls. All rows are judged at the end."""
