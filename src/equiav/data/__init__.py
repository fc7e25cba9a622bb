"""Where clips come from: generated, prepared or published."""
