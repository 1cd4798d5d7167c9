"""The Backpass engine."""



version: str = '0.1.0'
