# `hydrant`, or python with a script that calls hydrant.cli, also after `uv run`. Other scripts are never started.
hydrant_completion()
{
    local PATH="$PWD/.venv/bin:$PATH" words=(${COMP_LINE:0:COMP_POINT}) program line
    [[ "${words[0]} ${words[1]}" == "uv run" ]] && words=("${words[@]:2}")
    [[ "${words[0]}" == *.py ]] && words=(python "${words[@]}")
    case "${words[0]}" in
        hydrant|*/hydrant) program=("${words[0]}") ;;
        python*|*/python*) grep -qs "hydrant\.cli" "${words[1]}" || return; program=("${words[@]:0:2}") ;;
        *) return ;;
    esac
    line="${words[*]}"
    [[ "${COMP_LINE:0:COMP_POINT}" == *" " ]] && line+=" "
    COMPREPLY=($(compgen -W "$(COMP_LINE="$line" "${program[@]}" -sc query=bash 2> /dev/null)" -- "${line##* }"))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F hydrant_completion hydrant python python3 train.py
complete -p uv &> /dev/null || complete -o nospace -o default -F hydrant_completion uv
