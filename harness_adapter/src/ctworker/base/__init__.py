"""What everything else uses: errors, files, tables, the terminal, Ctrl-C."""
