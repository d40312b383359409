"""The pages. From a user's id a view finds the shard of all that it reads or changes."""

from datetime import date

from django import forms
from django.contrib.auth import login
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import BadRequest
from django.db import IntegrityError
from django.http import JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.views.decorators.http import require_POST

from photos import actions, fleet
from photos.models import LAYOUT, Account, Follower, Following, Like, Photo, User

PAGE = 12  # photos


class Address(forms.Form):
    """What the address of a page may ask for."""

    before = after = forms.IntegerField(required=False)
    since = until = forms.DateField(required=False)


Post = forms.modelform_factory(Photo, fields=["caption"])
SignUp = forms.modelform_factory(
    Account, fields=["username", "password"], widgets={"password": forms.PasswordInput}
)


def valid(form):
    """Return what a form has; what it cannot have is answered by 400."""
    if not form.is_valid():
        raise BadRequest(form.errors.as_text())
    return form.cleaned_data


def page(request, title, photos, **more):
    """Show photos of some keys, newest first. Ids sort by time: the next page is below the last."""
    if before := valid(Address(request.GET))["before"]:
        photos = photos.filter(id__lt=before)
    shown = photos.merge("-id", limit=PAGE)
    likes = Like.objects.for_key(request.user.id).filter(photo_id__in=[one.id for one in shown])
    liked = set(likes.values_list("photo_id", flat=True))
    for photo in shown:
        photo.liked = photo.id in liked
    older = shown[-1].id if len(shown) == PAGE else None
    return render(request, "page.html", {"title": title, "photos": shown, "older": older, **more})


def feed_of(user):
    """Return the photos of a user and of whom the user follows, in whichever shards they are."""
    followees = Following.objects.for_key(user).filter(live=True)
    return Photo.objects.for_keys([user, *followees.values_list("other_id", flat=True)])


@login_required
def feed(request):
    people = Account.objects.exclude(id=request.user.id).only("username").order_by("?")[:12]
    return page(request, "Feed", feed_of(request.user.id), people=people)


@login_required
def news(request):
    """Answer whether the feed has a photo above an id."""
    after = valid(Address(request.GET))["after"] or 0
    newer = feed_of(request.user.id).filter(id__gt=after)
    return JsonResponse({"newer": bool(newer.merge("-id", limit=1))})


@login_required
def likes(request):
    """What I like: my shard has pairs of key and id, and the keys' shards have the photos."""
    mine = Like.objects.for_key(request.user.id).order_by("-id")[:500]
    pairs = list(mine.values_list("owner_id", "photo_id"))
    photos = Photo.objects.for_keys({owner for owner, _ in pairs})
    return page(request, "Likes", photos.filter(id__in=[photo for _, photo in pairs]))


@login_required
def profile(request, user, error=""):
    """One user's photos, of all time or of some days."""
    person = get_object_or_404(User.objects.for_key(user), deleted=False)
    me, asked = request.user.id, valid(Address(request.GET))
    photos = Photo.objects.for_keys([user])
    if since := asked["since"]:
        photos = photos.filter(id__gte=floor(since))
    if until := asked["until"]:
        photos = photos.filter(id__lt=floor(until, later=1))
    more = {
        "following": Following.objects.for_key(user).filter(live=True).count(),
        "followers": Follower.objects.for_key(user).filter(live=True).count(),
        "follows": Following.objects.for_key(me).filter(live=True, other_id=user).exists(),
        "blocks": Follower.objects.for_key(me).filter(blocked=True, other_id=user).exists(),
    }
    return page(request, person.name, photos, person=person, error=error, **more)


def floor(day, later=0):
    """Return the lowest id of a day, UTC, or of so many days later: time ranges are id ranges."""
    time_ms = ((day - date(1970, 1, 1)).days + later) * 86_400_000
    return (time_ms - LAYOUT.epoch_ms) << (LAYOUT.shard_bits + LAYOUT.sequence_bits)


@login_required
@require_POST
def post(request):
    actions.post(request.user.id, **valid(Post(request.POST)))
    return redirect("feed")


@login_required
@require_POST
def like(request, owner, photo):
    get_object_or_404(Photo.objects.for_key(owner), id=photo)
    actions.like(request.user.id, owner, photo)
    return redirect(f"{request.META.get('HTTP_REFERER', '/likes')}#c{photo}")


@login_required
@require_POST
def act(request, user):
    """Follow or block a user, or no longer; or delete oneself."""
    me, do = request.user.id, request.POST.get("do", "")
    get_object_or_404(User.objects.for_key(user))
    try:
        if do == "delete" and user == me:
            actions.leave(me)
            return redirect("sign_up")
        change = {"follow": actions.follow, "block": actions.block}.get(do.removeprefix("un"))
        if change is None:
            raise BadRequest(do)
        change(me, user, not do.startswith("un"))
    except actions.Refused as error:
        return profile(request, user, error=str(error))
    return redirect("profile", user)


def sign_up(request):
    """Make a user in any shard: the id that the shard makes is the key, and the account's id."""
    form = SignUp(request.POST or None)
    if form.is_valid():
        user = User.objects.create(name=form.cleaned_data["username"])
        try:
            login(request, Account.objects.create_user(**form.cleaned_data, id=user.id))
            return redirect("feed")
        except IntegrityError:  # another request took the name first
            user.delete()
            form.add_error("username", "This name is taken.")
    return render(request, "sign_in.html", {"title": "Sign up", "form": form})


SIGN_IN = LoginView.as_view(
    template_name="sign_in.html",
    extra_context={"title": "Sign in", "people": Account.objects.order_by("date_joined")[:12].all},
)
urlpatterns = [
    path("", feed, name="feed"),
    path("news", news, name="news"),
    path("likes", likes, name="likes"),
    path("post", post, name="post"),
    path("like/<int:owner>/<int:photo>", like, name="like"),
    path("user/<int:user>", profile, name="profile"),
    path("user/<int:user>/act", act, name="act"),
    path("fleet", fleet.events, name="fleet"),
    path("sign-up", sign_up, name="sign_up"),
    path("sign-in", SIGN_IN, name="sign_in"),
    path("sign-out", LogoutView.as_view(), name="sign_out"),
]
