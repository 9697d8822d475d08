"""columnar"""
