"""GET of one object and of a list."""

from __future__ import annotations

from collections.abc import Mapping

from tests.apiserver.schema.kinds import Kind
from tests.apiserver.schema.versions import Object, shown
from tests.apiserver.serve.answer import Answer
from tests.apiserver.serve.route import ServedRequest
from tests.apiserver.store.objects import Store
from tests.apiserver.store.paging import Listing, list_page, read_limit
from tests.apiserver.store.selectors import Matches, field_selector, label_selector


def list_objects(
    store: Store,
    kind: Kind,
    served_request: ServedRequest,
    query: Mapping[str, str],
    *,
    pages_from_cache: bool,
) -> Answer:
    """Return a list, or one page of it."""
    page = list_page(
        store,
        kind,
        Listing(
            namespace=served_request.namespace if kind.namespaced else "",
            matches=selector(kind, query),
            selects=bool(query.get("fieldSelector") or query.get("labelSelector")),
            limit=read_limit(query),
            version=query.get("resourceVersion", ""),
            match=query.get("resourceVersionMatch", ""),
            token=query.get("continue", ""),
        ),
        pages_from_cache=pages_from_cache,
    )
    metadata: Object = {"resourceVersion": str(page.version)}
    if page.continue_token:
        metadata["continue"] = page.continue_token
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
    items = [
        shown(kind, served_request.group, served_request.version, body) for body in page.bodies
    ]
    if not kind.custom:  # items of built-in lists do not say what they are
        items = [
            {k: v for k, v in item.items() if k not in ("apiVersion", "kind")} for item in items
        ]
    version = (
        f"{served_request.group}/{served_request.version}"
        if served_request.group
        else served_request.version
    )
    body = {"kind": f"{kind.kind}List", "apiVersion": version, "metadata": metadata, "items": items}
    return Answer(body=body)


def selector(kind: Kind, query: Mapping[str, str]) -> Matches:
    """Return the test that both selectors of a query make."""
    by_field = field_selector(kind.plural, query.get("fieldSelector", ""))
    by_label = label_selector(query.get("labelSelector", ""))
    return lambda body: by_field(body) and by_label(body)
