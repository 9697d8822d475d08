"Demonstrations and the servers they need."
