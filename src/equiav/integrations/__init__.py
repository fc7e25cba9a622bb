"""Where people already work: each module is one optional integration with the library it is named after."""
