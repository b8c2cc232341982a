_hydrant() {
    local PATH="$PWD/.venv/bin:$PATH" found
    found=("${(@f)$(COMP_LINE="${(j: :)words[1,CURRENT]}" hydrant -sc query=bash 2> /dev/null)}")
    [[ -n "${found[1]}" ]] && compadd -Q -S "" -a found || _files
}
compdef _hydrant hydrant
