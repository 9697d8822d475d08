"""The demo: two expressways, an accident, tolls, live; judged at the end."""
