"""The demo: telephone fraud in generated calls, detected live and compared with the sequential answer."""
