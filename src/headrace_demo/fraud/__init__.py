"""The demo: telephone fraud in made-up calls, found live and compared with the sequential answer."""
