#!/bin/sh
# Trains experiment=film_small_device from a bundle (recipes/film_small/bundle.py) for some minutes; resumes.
#   sh recipes/film_small/train_bundle.sh MINUTES FOLDER [words for train.py]
# Run it in the root of the repository, with the bundle in data/bundle or in $BUNDLE, by $PYTHON (python3). FOLDER gets
# weights.safetensors, metrics.jsonl, config.yaml, train.log and the newest picture.
set -eu
minutes=$1 folder=$2
shift 2
bundle=${BUNDLE:-data/bundle} python=${PYTHON:-python3} run=runs/film_small_device
mkdir -p "$folder" runs
if ! [ -d runs/.packages ]; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --target runs/.packages "$bundle"/wheels/*.whl
fi
export PYTHONPATH="$PWD:$PWD/runs/.packages" PYTHONUNBUFFERED=1
stopped=0
timeout --signal=INT "${minutes}m" "$python" train.py experiment=film_small_device "data.folder=$bundle/photographs" \
    "data.film=$bundle/film.mp4" data.run=9 logger.tensorboard=false trainer.progress=false "$@" \
    >>"$folder/train.log" 2>&1 || stopped=$?
tail -n 5 "$folder/train.log"
# 124: the time is up; 130: interrupted. The state is saved, the weights are not exported yet.
case $stopped in
0) ;;
124 | 130) "$python" -m common.training.export $run ;;
*) exit "$stopped" ;;
esac
cp $run/weights.safetensors $run/metrics.jsonl $run/config.yaml "$folder"
newest=$(ls -t $run/pictures/*.png 2>/dev/null | head -n 1)
[ -z "$newest" ] || cp "$newest" "$folder/newest.png"
