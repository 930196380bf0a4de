# All programs in one image, with their licences: no shell, no package manager.
#
#   docker build -t kube-semaphore:v1.2.3 .
#
# The programs know their version and revision from the repository that the context
# has in .git, unless the arguments VERSION and REVISION say otherwise.
#
# The compiler runs on the builder's own architecture, whatever the target's is,
# so that an image for another one needs no emulation.
#
# A release is built upon an image that is named by its digest, see
# docs/releasing.md; the tag serves development.
ARG GO_IMAGE=golang:1.26

# Which build this is goes into a file beside the sources, and the repository no
# further than here: what is built again depends on the content of both alone.
FROM --platform=$BUILDPLATFORM $GO_IMAGE AS source
WORKDIR /src
COPY . .
ARG VERSION=
ARG REVISION=
# Files that .dockerignore leaves out, or that were deleted, are no change. Without .git, as
# in the context of a linked worktree, the version is unknown.
RUN if number=$(git describe --tags --always) && revision=$(git rev-parse HEAD) && \
      changed=$(git -c core.fileMode=false diff --name-only --diff-filter=d HEAD && git ls-files --others --exclude-standard); then \
      if [ -n "$changed" ]; then number=$number-dirty revision=$revision-dirty; fi; \
    else \
      number=devel revision=unknown; \
    fi; \
    echo "${VERSION:-$number} ${REVISION:-$revision}" > /build && rm -rf .git

FROM --platform=$BUILDPLATFORM $GO_IMAGE AS build
WORKDIR /src
# Both commands compile with these, and share what they compiled.
ENV CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false"

# Modules change seldom: a layer of their own, and a cache beside it.
COPY go.mod go.sum ./
COPY tools/go.mod tools/go.sum tools/
RUN --mount=type=cache,target=/go/pkg/mod \
    go mod download && go -C tools mod download

# Most licences of what is linked ask that their text goes along. The tool runs
# here, whatever the image is for; it lists what is linked on any architecture.
COPY --from=source /src .
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    mkdir /doc && go -C tools run ./release licences -texts -o /doc/third-party-licences.txt

COPY --from=source /build /build
ARG TARGETOS=linux
ARG TARGETARCH
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    pkg=github.com/kube-semaphore/kube-semaphore/internal/process && read -r number revision < /build && \
    GOOS=$TARGETOS GOARCH=$TARGETARCH go build \
      -ldflags "-s -w -X $pkg.number=$number -X $pkg.revision=$revision" -o /out/ ./cmd/... && \
    for name in semaphore-policy semaphore-relay semaphore-service-mirror semaphore-tokens; do \
      ln -sf semaphore-controllers /out/$name; \
    done

FROM scratch
# What a CA served over https (SEMAPHORE_REMOTE_<NAME>_CA_URL) is verified with.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /src/LICENSE /LICENSE
COPY --from=build /doc/ /usr/share/doc/kube-semaphore/
COPY --from=build /out/ /bin/
# An unprivileged user. The agent's manifest asks for root, which its capability needs.
USER 65532:65532
