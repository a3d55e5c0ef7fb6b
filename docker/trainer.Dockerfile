# The trainer image: no base image, no network. pipe stages what it copies (`pipe image build`).
FROM scratch
# libtorch is large and rarely changes: a layer of its own.
COPY pipe/libtorch /opt/pipe/libtorch
COPY pipe/system /
COPY pipe/bin /opt/pipe/bin
# The driver's libraries of the host are mounted there when a GPU comes as plain devices.
ENV LD_LIBRARY_PATH=/opt/pipe/libtorch/lib:/opt/pipe/driver
ENTRYPOINT ["/opt/pipe/bin/pipe-trainer"]
