"""An admin that asks for the shard key, and then shows the rows of that key."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from django.contrib.admin import ModelAdmin
from django.contrib.admin.utils import unquote
from django.core.exceptions import ValidationError
from django.template.response import TemplateResponse

from shardctl.contrib.django import fleet
from shardctl.contrib.django.models import ShardedId
from shardctl.contrib.django.routing import use_shard
from shardctl.errors import ShardctlError

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest


class ShardedAdmin(ModelAdmin):
    """The admin of a ShardedModel: its pages have the key in their address, or ask for it.

    A page of one row whose id is a ShardedId needs no key.
    """

    list_select_related = ()  # no joins with rows elsewhere, which Django would choose

    def get_urls(self) -> list[Any]:
        """Let each page be in the shard of its key."""
        urls = super().get_urls()
        for url in urls:
            url.callback = partial(self._within, url.callback)
        return urls

    def get_queryset(self, request: HttpRequest) -> Any:
        """Give the rows of the page's key."""
        rows = super().get_queryset(request)
        text = self._given(request)
        return rows if text is None else rows.for_key(text)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Refuse changes of a row's key."""
        fields = super().get_readonly_fields(request, obj)
        return fields if obj is None else (*fields, self.model.key_field().name)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Begin a new row with the page's key."""
        key = {self.model.key_field().name: self._given(request)}
        return {**key, **super().get_changeform_initial_data(request)}

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow the key in the address."""
        return lookup == self.model.key_field().attname or super().lookup_allowed(
            lookup, value, request
        )

    def _within(
        self, view: Callable[..., Any], request: HttpRequest, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a view of Django's in the shard of the page, or ask for the key."""
        if not self.admin_site.has_permission(request):
            return view(request, *args, **kwargs)  # which asks to log in
        field, text, error = self.model.key_field(), self._given(request), None
        number, object_id = None, kwargs.get("object_id")
        try:
            if text is not None:
                number = fleet.database().shard_of(field.to_python(text))
            elif object_id is not None and isinstance(self.model._meta.pk, ShardedId):
                number = fleet.database().shard_of_id(int(unquote(object_id)))
        except ValidationError as wrong:
            error = " ".join(wrong.messages)
        except (ShardctlError, ValueError) as wrong:
            error = str(wrong)
        if number is None:
            asked = {
                **self.admin_site.each_context(request),
                "title": f"{self.opts.verbose_name_plural}: which {field.verbose_name}?",
                "label": field.verbose_name,
                "key": field.attname,
                "given": text or "",
                "error": error,
                "others": [item for item in request.GET.items() if item[0] != field.attname],
            }
            return TemplateResponse(request, "shardctl/ask_key.html", asked)
        with use_shard(number=number):
            response = view(request, *args, **kwargs)
            # What is rendered later would be outside of the shard.
            return response.render() if hasattr(response, "render") else response

    def _given(self, request: HttpRequest) -> str | None:
        """Give the key in the page's address, or in that of the list that led to it."""
        name = self.model.key_field().attname
        led = parse_qs(request.GET.get("_changelist_filters", ""))
        text = request.GET.get(name, led.get(name, [None])[0])
        return text or None
