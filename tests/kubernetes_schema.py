"""What the objects of the Kubernetes launch files may hold, after the public API reference.

Only keys that the files use are listed, and nothing else is allowed, so that a misspelt or
misplaced key fails. https://kubernetes.io/docs/reference/kubernetes-api, https://jobset.sigs.k8s.io/docs.
"""

from typing import Any

import yaml

# A text is a pattern of texts, a number the least one, a list one or more of any of its entries. A
# key with a question mark may be left out, and `*` stands for every key.
OBJECTS = r"""
PersistentVolumeClaim:
  apiVersion: v1
  metadata: &metadata
    name: &label '[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?'
    annotations?: &texts {'*': &text '[\s\S]+'}
  spec:
    accessModes: [ReadWriteOnce|ReadOnlyMany|ReadWriteMany|ReadWriteOncePod]
    storageClassName: *text
    resources: {requests: {storage: '[0-9]+([KMGTPE]i?)?'}}
ServiceAccount:
  apiVersion: v1
  metadata: *metadata
Role:
  apiVersion: rbac.authorization.k8s.io/v1
  metadata: *metadata
  rules: [{apiGroups: ['|batch'], resources: [pods|services|jobs], verbs: [get|list|watch]}]
RoleBinding:
  apiVersion: rbac.authorization.k8s.io/v1
  metadata: *metadata
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: *label}
  subjects: [{kind: ServiceAccount, name: *label}]
JobSet:
  apiVersion: jobset.x-k8s.io/v1alpha2
  metadata: *metadata
  spec:
    network:
      enableDNSHostnames: true
      subdomain?: *label
      publishNotReadyAddresses: true
    failurePolicy:
      maxRestarts: 0
      restartStrategy: Recreate|BlockingRecreate|InPlaceRestart
      rules:
      - name: '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?'
        action: FailJobSet|RestartJobSet|RestartJobSetAndIgnoreMaxRestarts
        onJobFailureReasons: [BackoffLimitExceeded|DeadlineExceeded|PodFailurePolicy]
    replicatedJobs:
    - name: *label
      replicas: 1
      template:
        spec:
          completionMode: NonIndexed|Indexed
          completions: 1
          parallelism: 1
          backoffLimit: 0
          podFailurePolicy:
            rules:
            - action: FailJob|FailIndex|Ignore|Count
              onExitCodes: {containerName: *label, operator: In|NotIn, values: [0]}
          template:
            spec:
              serviceAccountName?: *label
              automountServiceAccountToken?: true
              restartPolicy: Never  # or OnFailure, but not with a podFailurePolicy
              terminationGracePeriodSeconds: 1
              nodeSelector?: *texts
              containers:
              - name: *label
                image: *text
                command: [*text]
                args: [*text]
                resources:
                  limits:
                    nvidia.com/gpu?: 1
                    google.com/tpu?: 1
                volumeMounts: [{name: *label, mountPath: '/.*'}]
              volumes:
              - {name: *label, persistentVolumeClaim: {claimName: *label}}
              - {name: *label, emptyDir: {medium: '|Memory'}}
"""


def schema_of(thing: Any) -> dict[str, Any]:
    """The JSON schema of what is described like that."""
    if isinstance(thing, dict):
        known = {key.rstrip("?"): schema_of(value) for key, value in thing.items()}
        return {
            "type": "object",
            "minProperties": 1,
            "properties": known,
            "required": [key for key in thing if key != "*" and not key.endswith("?")],
            "additionalProperties": known.get("*", False),
        }
    if isinstance(thing, list):
        return {"type": "array", "minItems": 1, "items": {"anyOf": [*map(schema_of, thing)]}}
    if isinstance(thing, bool):
        return {"type": "boolean"}
    if isinstance(thing, int):
        return {"type": "integer", "minimum": thing}
    return {"type": "string", "pattern": f"^({thing})$"}


SCHEMAS = {
    kind: schema_of({"kind": kind, **parts}) for kind, parts in yaml.safe_load(OBJECTS).items()
}
