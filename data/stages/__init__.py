"""The stages that a row goes through between its source and its file: see `plansmith.data.build` for their order."""
