"""Workers: functions that plans call, with their catalog entries."""
