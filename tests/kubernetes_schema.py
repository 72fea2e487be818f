"""What the objects of the Kubernetes launch files may hold, after the public API reference.

Only keys that the files use are listed, and nothing else is allowed, so that a misspelt or
misplaced key fails. https://kubernetes.io/docs/reference/kubernetes-api, https://jobset.sigs.k8s.io/docs.
"""

from typing import Any


def one_of(*values: object) -> dict[str, Any]:
    return {"enum": list(values)}


def listed(item: dict[str, Any], **limits: int) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1, **limits}


def record(optional: tuple[str, ...] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    """An object with these keys and no other; all are required but the optional ones."""
    return {
        "type": "object",
        "properties": properties,
        "required": [key for key in properties if key not in optional],
        "additionalProperties": False,
    }


TEXT = {"type": "string", "minLength": 1}
LABEL = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
QUANTITY = {"type": "string", "pattern": "^[0-9]+([KMGTPE]i?)?$"}
COUNT = {"type": "integer", "minimum": 1}
TEXTS = {"type": "object", "additionalProperties": TEXT, "minProperties": 1}
METADATA = record(("annotations",), name=LABEL, annotations=TEXTS)


def top(version: str, kind: str, optional: tuple[str, ...] = (), **parts: Any) -> dict[str, Any]:
    names = {"apiVersion": one_of(version), "kind": one_of(kind), "metadata": METADATA}
    return record(optional, **names, **parts)


POD = record(
    ("serviceAccountName", "automountServiceAccountToken", "nodeSelector"),
    serviceAccountName=LABEL,
    automountServiceAccountToken={"type": "boolean"},
    restartPolicy=one_of("Never"),  # a Job's pods: or OnFailure, but not with a podFailurePolicy
    terminationGracePeriodSeconds=COUNT,
    nodeSelector=TEXTS,
    containers=listed(
        record(
            name=LABEL,
            image=TEXT,
            command=listed(TEXT),
            args=listed(TEXT),
            resources=record(
                limits={
                    "type": "object",
                    "properties": {"nvidia.com/gpu": COUNT, "google.com/tpu": COUNT},
                    "additionalProperties": False,
                    "minProperties": 1,
                },
            ),
            volumeMounts=listed(record(name=LABEL, mountPath={"type": "string", "pattern": "^/"})),
        )
    ),
    volumes=listed(
        record(
            ("persistentVolumeClaim", "emptyDir"),
            name=LABEL,
            persistentVolumeClaim=record(claimName=LABEL),
            emptyDir=record(medium=one_of("", "Memory")),
        )
        | {"minProperties": 2, "maxProperties": 2}
    ),
)

JOB = record(
    completionMode=one_of("NonIndexed", "Indexed"),
    completions=COUNT,
    parallelism=COUNT,
    backoffLimit={"type": "integer", "minimum": 0},
    podFailurePolicy=record(
        rules=listed(
            record(
                action=one_of("FailJob", "FailIndex", "Ignore", "Count"),
                onExitCodes=record(
                    containerName=LABEL,
                    operator=one_of("In", "NotIn"),
                    values=listed({"type": "integer"}, maxItems=255),
                ),
            ),
            maxItems=20,
        )
    ),
    template=record(spec=POD),
)

RULE_NAME = {"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"}
JOB_FAILURES = ("BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy")
SCHEMAS = {
    "PersistentVolumeClaim": top(
        "v1",
        "PersistentVolumeClaim",
        spec=record(
            accessModes=listed(
                one_of("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
            ),
            storageClassName=TEXT,
            resources=record(requests=record(storage=QUANTITY)),
        ),
    ),
    "ServiceAccount": top("v1", "ServiceAccount"),
    "Role": top(
        "rbac.authorization.k8s.io/v1",
        "Role",
        rules=listed(
            record(
                apiGroups=listed(one_of("", "batch")),
                resources=listed(one_of("pods", "services", "jobs")),
                verbs=listed(one_of("get", "list", "watch")),
            )
        ),
    ),
    "RoleBinding": top(
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        roleRef=record(
            apiGroup=one_of("rbac.authorization.k8s.io"), kind=one_of("Role"), name=LABEL
        ),
        subjects=listed(record(kind=one_of("ServiceAccount"), name=LABEL)),
    ),
    "JobSet": top(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        spec=record(
            network=record(
                ("subdomain",),
                enableDNSHostnames={"type": "boolean"},
                subdomain=LABEL,
                publishNotReadyAddresses={"type": "boolean"},
            ),
            failurePolicy=record(
                maxRestarts={"type": "integer", "minimum": 0},
                restartStrategy=one_of("Recreate", "BlockingRecreate", "InPlaceRestart"),
                rules=listed(
                    record(
                        name=RULE_NAME,
                        action=one_of(
                            "FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"
                        ),
                        onJobFailureReasons=listed(one_of(*JOB_FAILURES)),
                    )
                ),
            ),
            replicatedJobs=listed(record(name=LABEL, replicas=COUNT, template=record(spec=JOB))),
        ),
    ),
}
