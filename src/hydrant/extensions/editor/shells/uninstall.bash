complete -r hydrant python python3 train.py
[[ $(complete -p uv 2> /dev/null) == *hydrant_completion* ]] && complete -r uv
unset -f hydrant_completion
