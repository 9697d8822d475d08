"""keyed"""
