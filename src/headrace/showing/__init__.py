"""What people see: plans as text and as pictures, a run as it goes on, and streams that may have nobody behind them."""
