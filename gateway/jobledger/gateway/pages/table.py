"""Every page and every form, in one table each."""

from __future__ import annotations

from typing import Final

from jobledger.gateway.pages.forms.jobs import act_on_job
from jobledger.gateway.pages.page import Form, Page
from jobledger.gateway.pages.views.job import job_page
from jobledger.gateway.pages.views.overview import Query as OverviewQuery
from jobledger.gateway.pages.views.overview import overview

PAGES: Final = (
    Page(path="/", template="overview.html", facts=overview, query=OverviewQuery),
    Page(path="/jobs/{queue}/{id}", template="job.html", facts=job_page),
)
FORMS: Final = (Form(path="/jobs/{queue}/{id}/{verb}", permission=None, act=act_on_job),)
