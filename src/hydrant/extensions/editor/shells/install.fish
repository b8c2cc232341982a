function __hydrant_complete
    set -lx PATH $PWD/.venv/bin $PATH
    set -lx COMP_LINE (commandline --current-process --cut-at-cursor)
    hydrant -sc query=bash 2> /dev/null
end
complete --command hydrant --arguments "(__hydrant_complete)"
