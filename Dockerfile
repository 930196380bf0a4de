# All programs in one image, with their licences: no shell, no package manager.
#
#   docker build --build-arg VERSION=v1.2.3 --build-arg REVISION=$(git rev-parse HEAD) -t kube-semaphore:v1.2.3 .
#
# The compiler runs on the builder's own architecture, whatever the target's is,
# so that an image for another one needs no emulation.
#
# A release is built upon an image that is named by its digest, see
# docs/releasing.md; the tag serves development.
ARG GO_IMAGE=golang:1.26
FROM --platform=$BUILDPLATFORM $GO_IMAGE AS build
WORKDIR /src

# Modules change seldom: a layer of their own, and a cache beside it.
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod \
    go mod download

COPY . .
ARG TARGETOS=linux
ARG TARGETARCH
ARG VERSION=devel
ARG REVISION=unknown
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    pkg=github.com/kube-semaphore/kube-semaphore/internal/run && \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
      -ldflags "-s -w -X $pkg.number=$VERSION -X $pkg.revision=$REVISION" -o /out/ ./cmd/...

# Most licences of what is linked ask that their text goes along. The tool runs
# here, whatever the image is for; it lists what is linked on any architecture.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    mkdir /doc && go run ./deploy/release licences -texts -o /doc/third-party-licences.txt

FROM scratch
# What a CA served over https (SEMAPHORE_REMOTE_<NAME>_CA_URL) is verified with.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /src/LICENSE /LICENSE
COPY --from=build /doc/ /usr/share/doc/kube-semaphore/
COPY --from=build /out/ /bin/
# Nobody in particular. The agent's manifest asks for root, which its capability
# needs.
USER 65532:65532
