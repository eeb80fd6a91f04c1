# The image of nodes.yaml: the server's, and templates that were built beforehand. From the project's
# folder, with a state directory in which `cellwall templates build python` has run as uid 10001 at
# /var/lib/cellwall (deploy/compose.yaml says how), its `templates` copied to ./templates:
#
#     docker build -f deploy/kubernetes/node.Dockerfile -t cellwall-node .
FROM cellwall
COPY --chown=10001:10001 templates /opt/templates
