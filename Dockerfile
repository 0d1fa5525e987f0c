# One image per program: docker build --target extender|webhook|nodeplugin .
# The build context is what .dockerignore lets through.

# Debian 12 as below: a program built with cgo needs at least the glibc it was
# linked with.
FROM golang:1.26-bookworm AS modules
WORKDIR /src
# Modules first: they change less often than code, so this layer is kept.
COPY go.mod go.sum ./
RUN go mod download

FROM modules AS build
COPY . .
ARG VERSION=unknown
RUN CGO_ENABLED=0 go build -trimpath \
      -ldflags "-s -w -X github.com/tranche-dev/tranche/pkg/program.version=${VERSION}" \
      -o /out/ ./cmd/tranche-extender ./cmd/tranche-webhook
# NVML is a C library that the program opens when it starts, so this one needs
# cgo, and glibc where it runs.
RUN CGO_ENABLED=1 go build -trimpath \
      -ldflags "-s -w -X github.com/tranche-dev/tranche/pkg/program.version=${VERSION}" \
      -o /out/ ./cmd/tranche-nodeplugin

FROM gcr.io/distroless/static-debian12:nonroot AS extender
COPY --from=build /out/tranche-extender /tranche-extender
# A number, so that the kubelet can tell that it is not root.
USER 65532:65532
ENTRYPOINT ["/tranche-extender"]

FROM gcr.io/distroless/static-debian12:nonroot AS webhook
COPY --from=build /out/tranche-webhook /tranche-webhook
USER 65532:65532
ENTRYPOINT ["/tranche-webhook"]

# The kubelet's sockets and directories belong to root.
FROM gcr.io/distroless/base-debian12:latest AS nodeplugin
COPY --from=build /out/tranche-nodeplugin /tranche-nodeplugin
USER 0:0
ENTRYPOINT ["/tranche-nodeplugin"]
